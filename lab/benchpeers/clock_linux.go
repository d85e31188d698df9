package main

import "golang.org/x/sys/unix"

// cpuTime is the CPU seconds of the calling thread.
func cpuTime() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return float64(t.Sec) + float64(t.Nsec)/1e9
}
