#!/bin/bash
ln -sfn releases/2 /srv/service/current
