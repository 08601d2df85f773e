import { readFileSync } from 'node:fs';
import react from '@vitejs/plugin-react';
import { defineConfig, type Plugin } from 'vite';

/** Phaser is one file of its own, which exports hold as well: bundled, the package would have it twice. */
const phaser: Plugin = {
  name: 'phaser',
  apply: 'build',
  generateBundle() {
    const source = readFileSync('node_modules/phaser/dist/phaser.esm.min.js', 'utf8');
    this.emitFile({ type: 'asset', fileName: 'phaser.js', source });
  },
};

// Relative addresses: the same build works at the root of a server, below a proxy's path, and in the package.
export default defineConfig({
  base: './',
  plugins: [react(), phaser],
  build: {
    outDir: '../src/onthejob/_viewer',
    emptyOutDir: true,
    chunkSizeWarningLimit: 1500,
    target: 'es2022',
    rollupOptions: { external: ['phaser'], output: { paths: { phaser: '../phaser.js' } } },
  },
  server: { proxy: { '/api': 'http://127.0.0.1:8080', '/ws': { target: 'ws://127.0.0.1:8080', ws: true } } },
});
