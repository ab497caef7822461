"""What the gate holds still while the code below it changes: ids, axes and commands of records, help, messages."""
