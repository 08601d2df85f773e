import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';
import { viteSingleFile } from 'vite-plugin-singlefile';

// One file that opens from disk: the server puts an episode into it, and Phaser where it is needed, which an import map names.
// The 3D office stays out, it would double its size.
export default defineConfig({
  base: './',
  define: { 'import.meta.env.VITE_REPLAY': 'true' },
  plugins: [react(), viteSingleFile({ removeViteModuleLoader: true })],
  publicDir: false,
  build: {
    outDir: '../src/onthejob/_viewer',
    emptyOutDir: false,
    target: 'es2022',
    rollupOptions: { input: 'replay.html', external: ['phaser'] },
  },
});
