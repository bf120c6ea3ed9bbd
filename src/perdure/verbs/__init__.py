"""What can be asked of an app, verb by verb; `app` is their one door."""
