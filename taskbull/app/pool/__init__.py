"""The process's side of the process pool: importing the app and running its tasks' functions."""
