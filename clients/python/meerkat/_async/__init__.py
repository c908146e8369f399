"""The client with `async`. The one without is made from it."""
