//! How what is sent grows with the number of processes, and what to do past one server.
