//go:build !linux

package main

import "time"

var began = time.Now()

// cpuTime is wall time where the system has no clock for a thread's CPU time: compare only on an idle machine.
func cpuTime() float64 { return time.Since(began).Seconds() }
