#!/bin/bash
cd /workspace
tr A-Z a-z < words.txt | sort | uniq -c | awk '$1 > 1' | sort -k1,1nr -k2 | awk '{ print $2 }' > sorted.txt
