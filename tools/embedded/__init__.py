"""The models that ship with lutlab: corpus, training, export."""
