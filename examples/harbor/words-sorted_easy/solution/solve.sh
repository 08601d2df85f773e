#!/bin/bash
sort -u /workspace/words.txt > /workspace/sorted.txt
