//go:build tools

// Package tools pins the commands that the test cluster runs.
package tools

import (
	_ "github.com/opencontainers/runc"
)
