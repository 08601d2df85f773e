"""The office as an OpenEnv package; the environment itself is `onthejob.envs.office`."""
