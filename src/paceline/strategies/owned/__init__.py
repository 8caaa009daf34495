"""Updates that are made by one worker for all: who owns a parameter, and what each worker keeps."""
