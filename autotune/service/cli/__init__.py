"""The commands of the service, and those that call one."""
