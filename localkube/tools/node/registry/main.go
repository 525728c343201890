// A container registry that keeps blobs and manifests as files, for images that never leave the machine.
package main

import (
	"fmt"
	"os"

	"github.com/distribution/distribution/v3/registry"

	// The only storage driver compiled in.
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
