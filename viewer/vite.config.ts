import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// Relative addresses: the same build works at the root of a server, below a proxy's path, and in the package.
export default defineConfig({
  base: './',
  plugins: [react()],
  build: { outDir: '../src/onthejob/_viewer', emptyOutDir: true, chunkSizeWarningLimit: 1500, target: 'es2022' },
  server: { proxy: { '/api': 'http://127.0.0.1:8080', '/ws': { target: 'ws://127.0.0.1:8080', ws: true } } },
});
