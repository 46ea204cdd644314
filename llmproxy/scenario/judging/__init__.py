"""What a judge is asked, and how several votes become one verdict."""
