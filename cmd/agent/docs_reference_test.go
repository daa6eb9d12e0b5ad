package main

const reference = "../../docs/reference"
