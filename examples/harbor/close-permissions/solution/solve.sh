#!/bin/bash
chmod 600 /srv/keys/private.pem
chmod 755 /srv/keys/start.sh
