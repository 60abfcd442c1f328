"""One module for each trainer that owns the loop; it imports its trainer only when it is used."""
