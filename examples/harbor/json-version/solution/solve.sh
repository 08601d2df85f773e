#!/bin/bash
sed -i "s/2\.4\.9/2.4.10/" /app/package.json
