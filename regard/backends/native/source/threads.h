// Tasks that threads take in turns.
#pragma once

// Calls work(data) in so many threads at once, or in fewer; returns when all of them are done.
extern "C" void rg_in_threads(int threads, void (*work)(void *), void *data);
