"""Conversations over a WebSocket: their recording, their replay message by message, and their miss."""
