//! Threads, reactors, accept strategies, tasks, timers and the job pool; knows nothing of proxies or money.

#![forbid(unsafe_code)]
