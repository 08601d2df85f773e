declare module '*.css';

interface ImportMetaEnv {
  /** Set in the build of the single file that holds one episode. */
  readonly VITE_REPLAY?: boolean | 'true';
}
