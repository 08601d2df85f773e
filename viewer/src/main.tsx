import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { takeToken } from './api/client';
import { App } from './App';
import { useStore } from './lib/store';
import { hasToken } from './api/client';
import './styles.css';

takeToken();
useStore.setState({ canChange: hasToken() });
const root = document.getElementById('root');
if (root)
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
