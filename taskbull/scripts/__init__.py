"""One typed function per Lua script. The functions do no I/O."""
