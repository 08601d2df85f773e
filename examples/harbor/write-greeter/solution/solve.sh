#!/bin/bash
cat > /app/greet.sh <<'END'
#!/bin/sh
echo "Hello, ${1:-you}!"
END
chmod +x /app/greet.sh
