package e2e

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/serve"
)

// clockVar turns the test binary into `sightline serve` whose clock is ahead: "duration configuration".
const clockVar = "SIGHTLINE_E2E_CLOCK"

var ahead time.Duration

func serveAhead(told string) error {
	by, file, _ := strings.Cut(told, " ")
	d, err := time.ParseDuration(by)
	if err != nil {
		return err
	}
	if err := setClock(d); err != nil {
		return err
	}
	cfg, err := config.Load(file)
	if err != nil {
		return err
	}
	s, err := serve.Load(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Run(context.Background())
}

// setClock has time.Now jump to aheadNow. The kernel can give a process another monotonic clock but no other wall clock, and Go does not
// ask through libc.
func setClock(by time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("no other clock on %s (want amd64)", runtime.GOARCH)
	}
	before, now := time.Now(), time.Now
	code := **(***[12]byte)(unsafe.Pointer(&now))
	size := os.Getpagesize()
	into := int(uintptr(unsafe.Pointer(code)) % uintptr(size))
	pages := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(code), -into)), 2*size)
	if err := syscall.Mprotect(pages, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC); err != nil {
		return err
	}
	ahead = by
	copy(code[:], "\x48\xb8........\xff\xe0") // MOV its address to RAX, JMP RAX
	*(*uintptr)(unsafe.Pointer(&code[2])) = reflect.ValueOf(aheadNow).Pointer()
	after := time.Now() // time.Since asks another clock
	if got := after.Sub(before); (got - by).Abs() > time.Second {
		return fmt.Errorf("the clock is ahead by %v, want %v", got, by)
	}
	return nil
}

// aheadNow has no monotonic reading, so that differences are those of this clock too.
func aheadNow() time.Time {
	var tv syscall.Timeval
	_ = syscall.Gettimeofday(&tv)
	return time.Unix(tv.Unix()).Add(ahead)
}
