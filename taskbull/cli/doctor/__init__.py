"""What `taskbull doctor` looks at, and what it has to say."""
