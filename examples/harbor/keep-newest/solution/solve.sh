#!/bin/bash
cd /backup && ls -t | tail -n +3 | xargs rm
