#!/bin/bash
awk -F, 'NR > 1 { sum[$1] += $3 } END { for (r in sum) printf "%s %s\n", r, sum[r] }' "$SALES" | sort |
  awk '{ printf "%s\"%s\": %s", (NR > 1 ? ", " : "{"), $1, $2 } END { print "}" }' > /app/totals.json
