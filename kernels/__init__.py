"""Attention and KV movement on one device."""
