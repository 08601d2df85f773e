#!/bin/bash
cd /data/reports
for file in *.TXT; do mv "$file" "${file%.TXT}.txt"; done
ls > /data/index.txt
