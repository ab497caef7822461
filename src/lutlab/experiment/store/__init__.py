"""What was measured, by whom and where: records, their ids, the code and the machine."""
