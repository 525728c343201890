"""OpenAI's transcriptions and translations: forms with a file of sound, and text, times or events in answer."""
