// Command sightline-lab has what shows and measures Sightline and what no production process runs; package lab/command has its commands.
package main

import (
	"github.com/sightline-router/sightline/app/program"
	"github.com/sightline-router/sightline/lab/command"
)

func main() { program.Main(command.Name, command.Description, &command.All{}) }
