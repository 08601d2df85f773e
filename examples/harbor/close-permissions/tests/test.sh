#!/bin/bash
reward=0
if [ "$(stat -c %a /srv/keys/private.pem)" = 600 ] && [ "$(stat -c %a /srv/keys/start.sh)" = 755 ]; then
  reward=1
fi
echo $reward > /logs/verifier/reward.txt
