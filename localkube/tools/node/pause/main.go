// The process that holds a pod's namespaces: it sleeps, and reaps orphans, until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for reap() {
		}
	}
}

// reap collects one ended child and tells whether there was one.
func reap() bool {
	pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
	return err == nil && pid > 0
}
