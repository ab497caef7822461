"""Records of measured cells: their ids, the code and the machine."""
