"""The serving engine: its environment, its knobs, its process."""
