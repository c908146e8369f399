"""The client: a server, its sessions, and a method for each operation."""
