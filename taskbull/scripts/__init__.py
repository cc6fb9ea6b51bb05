"""Each Lua script as one typed function that does no IO."""
