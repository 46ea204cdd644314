"""What lies in a store: rows, bodies that share their parts, and the pieces they share."""
