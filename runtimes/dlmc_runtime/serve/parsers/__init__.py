"""What an answer says: reasoning, content and calls of tools, told apart by a model's markers."""
