"""Layers with weights and pools: conversion to one form each, and folding into neighbors."""
