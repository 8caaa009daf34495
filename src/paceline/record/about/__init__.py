"""What made a record (`origin`), what people say about it (`labels`), and who uses it at this moment (`lock`)."""
