//! The command line from outside: the built binary, in a folder and an environment of its own.
//!
//! Tests that run programs need `python3`. Where it is missing they say so and pass, unless the environment variable
//! `FAULTLAB_REQUIRE` contains `python`.

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
mod output;
mod processes;
mod reports;
