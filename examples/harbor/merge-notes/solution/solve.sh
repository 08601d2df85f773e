#!/bin/bash
python3 /solution/join.py && mkdir /var/notes/archive
