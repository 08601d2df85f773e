"""The commands of `onthejob`, one module per topic; each is imported only when it is called."""
