"""The file of a store: how it is opened, its schema and migrations, who may write, what git shall not see."""
