//! The command line from outside: the built binary, in a folder and an environment of its own.
//!
//! Tests that run programs need `python3`. Where it is missing they say so and pass, unless the environment variable
//! `FAULTLAB_REQUIRE` contains `python`. The same goes for `gdb`, `docker` (an engine, and a registry: `FAULTLAB_REGISTRY`
//! is what ci/docker-registry prints), `images` (the base of ci/make-base) and `second-engine` (root, and a `dockerd`).

mod attach;
mod bad_scenarios;
mod containers;
mod diagnose;
mod docker;
mod docker_auto;
mod docker_failures;
mod docker_podman;
mod docker_tools;
mod engine;
mod fixture;
mod images;
mod images_lock;
mod images_registry;
mod local;
mod output;
mod processes;
mod reports;
